-- ARGV: worker, how many, ms of idleness after which a claim is a dead worker's, 1 if the worker just started, the name
-- of this call, and the incarnation and step of the weights that the worker holds: none for any training ticket, step -1
-- for no training ticket.
-- Returns {entry, packed ticket, attempt, its age in ms} each; an attempt is a delivery, so dying with a ticket uses one up.
-- A call of the same name is the same call after a lost reply. It gets the same tickets, and no new delivery is counted.
-- Tickets that another worker has taken since are left out.
-- A death takes all tickets of its worker along, and at most one of them is its cause. So three deaths fail no ticket:
-- those that are not the cause continue after their last turn, and end before there are MAX_DELIVERIES.
--
-- A training ticket is handed out only to weights that may sample it now. Tickets that cannot be played yet stay in the
-- stream: in a worker's hands they would take the room of those that can, and its death would cost them an attempt.
-- Evaluation tickets have a stream of their own, so that none of them waits behind such a training ticket. They come after
-- the training tickets that can be played now.
local worker, wanted, idle, fresh = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'
local call, claimed, limit = ARGV[5], {}, tonumber(ARGV[7])
now() -- before any idle time is read

local function id_of(packed)
  local ticket = cmsgpack.unpack(packed)
  return ticket.group .. '#' .. ticket.k
end

local last = redis.call('HGET', claims, worker)
if last and string.sub(last, 1, #call) == call then
  for _, one in ipairs(cmsgpack.unpack(string.sub(last, #call + 1))) do
    if holds(id_of(one[2]), one[1], worker, one[3]) then claimed[#claimed + 1] = one end
  end
  return claimed
end

if limit then
  local pointer = redis.call('HGET', counters, 'version')
  if not pointer or cjson.decode(pointer)[1].incarnation ~= tonumber(ARGV[6]) then limit = -1 end
end

local function give_back_all(stream)
  for _, pending in ipairs(redis.call('XPENDING', stream, WORKERS, '-', '+', 100000, worker)) do
    if not given_back(pending) then
      redis.call('XCLAIM', stream, WORKERS, worker, 0, pending[1], 'IDLE', RETURNED, 'JUSTID')
    end
  end
end

local function playable(entry, highest)
  return not highest or cmsgpack.unpack(entry[2][2]).min_step <= highest
end

local time = wall()
local function take(entry, attempt)
  claimed[#claimed + 1] = {entry[1], entry[2][2], attempt, math.max(0, time - string.match(entry[1], '%d+'))}
end

local function redelivered(stream, highest)
  for _, pending in ipairs(redis.call('XPENDING', stream, WORKERS, 'IDLE', idle, '-', '+', 1000)) do
    if #claimed == wanted then return end
    local entry = not rests(pending) and redis.call('XRANGE', stream, pending[1], pending[1])[1]
    if not entry then -- later
    elseif pending[4] >= MAX_DELIVERIES then
      local id = id_of(entry[2][2])
      redis.call('HSET', failed, id, cmsgpack.unpack(entry[2][2]).task .. '\nworker died')
      withdraw(id, entry[1])
    elseif playable(entry, highest) then
      redis.call('XCLAIM', stream, WORKERS, worker, 0, entry[1])
      take(entry, pending[4] + 1)
    end
  end
end

local function last_delivered(stream)
  local group = redis.call('XINFO', 'GROUPS', stream)[1]
  for i = 1, #group, 2 do
    if group[i] == 'last-delivered-id' then return group[i + 1] end
  end
end

local function new(stream, highest)
  if #claimed == wanted then return end
  local count, room = 0, wanted - #claimed
  for _, entry in ipairs(redis.call('XRANGE', stream, '(' .. last_delivered(stream), '+', 'COUNT', room)) do
    if not playable(entry, highest) then break end
    take(entry, 1)
    count = count + 1
  end
  if count > 0 then redis.call('XREADGROUP', 'GROUP', WORKERS, worker, 'COUNT', count, 'STREAMS', stream, '>') end
end

for _, stream in ipairs({tickets, evals}) do
  if redis.call('EXISTS', stream) == 1 then
    local highest = stream == tickets and limit or nil
    if fresh then give_back_all(stream) end -- what an earlier process of this name held
    if highest ~= -1 then
      redelivered(stream, highest)
      new(stream, highest)
    end
  end
end
if #claimed > 0 then redis.call('HSET', claims, worker, call .. cmsgpack.pack(claimed)) end
return claimed
