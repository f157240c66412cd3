-- Before every script: the names of its keys (connection.py gives the order) and what several scripts do.
local tickets, outstanding, groups, ready, episodes, manifests, drops, failed, counters, evals, attempts,
  turns, lost_bodies, claims, lease, beats = unpack(KEYS)
local WORKERS = 'workers'   -- the consumer group
local MAX_ATTEMPTS = 3      -- an episode that fails in this attempt or a later one is not tried again
local MAX_DELIVERIES = 10   -- attempts in which workers died are no fault of the ticket, unless there are so many
local RETURNED = 1000000000 -- idle ms from which on anyone may claim a ticket that was handed back. One that rests has
                            -- fewer: less by what is left of its pause
local JUMP = 10000          -- ms

-- An error reply unless the caller holds the lease. The holder counts beside the epoch, because an emptied Redis
-- counts from 1 again.
local function lost(epoch, holder)
  local held = redis.call('HMGET', lease, 'epoch', 'holder')
  if held[1] == epoch and held[2] == holder then return nil end
  return redis.error_reply('LEASELOST epoch ' .. epoch .. ' of ' .. holder .. ' has passed to '
    .. (held[2] or 'nobody') .. ', epoch ' .. (held[1] or 'none'))
end

local function count(name)
  return tonumber(redis.call('HGET', counters, name)) or 0
end

-- The stream of a ticket or a group, by its id.
local function stream_of(id)
  return string.sub(id, 1, 5) == 'eval/' and evals or tickets
end

-- The finished turns of a ticket that is being played: a hash of its own.
local function turns_of(id)
  return turns .. ':' .. id
end

-- Takes a ticket out of its stream, so that nobody can claim it again. Its turns are not needed any more.
local function withdraw(id, entry)
  redis.call('DEL', turns_of(id))
  redis.call('XACK', stream_of(id), WORKERS, entry)
  redis.call('XDEL', stream_of(id), entry)
end

-- Deletes the tickets and episodes of a group and returns the bytes freed. Each k of a living group is in one of the
-- two hashes.
local function forget(group)
  local freed, k = 0, 0
  while true do
    local id = group .. '#' .. k
    local entry = redis.call('HGET', outstanding, id)
    local bytes = redis.call('HSTRLEN', episodes, id)
    if not entry and bytes == 0 then break end
    if entry then withdraw(id, entry) end
    redis.call('HDEL', outstanding, id)
    redis.call('HDEL', failed, id)
    redis.call('HDEL', lost_bodies, id)
    redis.call('HDEL', episodes, id)
    freed = freed + bytes
    k = k + 1
  end
  redis.call('HINCRBY', counters, 'bytes', 0 - freed) -- not -freed, which prints a zero as -0
  return freed
end

-- Whether a claim was given back: it still has its worker's name, and anyone may take its ticket, once it has rested.
local function given_back(pending) return pending[3] > RETURNED / 2 end

local function rests(pending) return given_back(pending) and pending[3] < RETURNED end

-- Whether this very claim still holds its ticket: a later claim has another worker or a higher delivery count.
local function holds(id, entry, worker, attempt)
  local pending = redis.call('XPENDING', stream_of(id), WORKERS, entry, entry, 1)[1]
  return pending and pending[2] == worker and pending[4] == attempt and not given_back(pending)
end

-- What is claimed stays claimed: idle times are by the server's clock, which has just jumped by `ms`. Given back ones
-- stay so, and rest as long as before.
local function claim_anew(ms)
  for _, stream in ipairs({tickets, evals}) do
    local pendings = redis.call('EXISTS', stream) == 1 and redis.call('XPENDING', stream, WORKERS, '-', '+', 100000)
    for _, pending in ipairs(pendings or {}) do
      local idle = given_back(pending) and pending[3] - ms or 0
      redis.call('XCLAIM', stream, WORKERS, pending[2], 0, pending[1], 'IDLE', idle, 'JUSTID')
    end
  end
end

-- Unix time in ms by the server's clock, as in the names of entries.
local function wall()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Milliseconds of a clock that all parties share and that never jumps. It follows the server's clock as long as that
-- runs on by less than JUMP between two calls (somebody calls every two seconds). Anything else is a clock that was
-- set, or a time in which nobody could call: it counts as no time, so no lease, claim or heartbeat expires by it.
local function now()
  local time = wall()
  local held = redis.call('HMGET', counters, 'wall', 'clock')
  local before, clock = tonumber(held[1]), tonumber(held[2])
  if not before then
    clock = time
  elseif time < before or time - before > JUMP then
    claim_anew(time - before)
  else
    clock = clock + time - before
  end
  redis.call('HSET', counters, 'wall', string.format('%.0f', time), 'clock', string.format('%.0f', clock))
  return clock
end
