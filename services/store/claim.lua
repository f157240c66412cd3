-- ARGV: worker, how many, ms of idleness after which a claim is a dead worker's, 1 if the worker just started.
-- Returns {entry, packed ticket, attempt} each; an attempt is a delivery, so dying with a ticket uses one up.
local worker, wanted, idle, fresh = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'
local claimed = {}
if redis.call('EXISTS', tickets) == 0 then return claimed end

local function take(entry, fields)
  local attempt = redis.call('XPENDING', tickets, WORKERS, entry, entry, 1)[1][4]
  if attempt <= MAX_ATTEMPTS then
    claimed[#claimed + 1] = {entry, fields[2], attempt}
    return
  end
  local ticket = cmsgpack.unpack(fields[2])
  redis.call('HSET', failed, ticket.group .. '#' .. ticket.k, ticket.task .. '\nworker died')
  withdraw(entry)
end

if fresh then
  -- What an earlier process of this name held goes back to all: the loop below finds it first.
  for _, pending in ipairs(redis.call('XPENDING', tickets, WORKERS, '-', '+', 100000, worker)) do
    redis.call('XCLAIM', tickets, WORKERS, worker, 0, pending[1], 'IDLE', RETURNED, 'JUSTID')
  end
end

local cursor = '0-0'
while #claimed < wanted do
  local reply = redis.call('XAUTOCLAIM', tickets, WORKERS, worker, idle, cursor, 'COUNT', wanted - #claimed)
  for _, entry in ipairs(reply[2]) do take(entry[1], entry[2]) end
  cursor = reply[1]
  if cursor == '0-0' then break end
end

if #claimed < wanted then
  local reply = redis.call('XREADGROUP', 'GROUP', WORKERS, worker, 'COUNT', wanted - #claimed, 'STREAMS', tickets, '>')
  for _, entry in ipairs(reply and reply[1][2] or {}) do take(entry[1], entry[2]) end
end
return claimed
