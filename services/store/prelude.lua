-- Before every script: the names of its keys (connection.py gives the order) and what several scripts do.
local tickets, outstanding, groups, ready, episodes, manifests, drops, failed, counters, evals, lease, beats =
  unpack(KEYS)
local WORKERS = 'workers'   -- the consumer group
local MAX_ATTEMPTS = 3
local RETURNED = 1000000000 -- idle ms of a ticket that was handed back: anyone may claim it at once

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

-- Takes a ticket out of its stream, so that nobody can claim it again.
local function withdraw(id, entry)
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
    redis.call('HDEL', episodes, id)
    freed = freed + bytes
    k = k + 1
  end
  redis.call('HINCRBY', counters, 'bytes', 0 - freed) -- not -freed, which prints a zero as -0
  return freed
end

-- Whether this very claim still holds its ticket: a later claim has another worker or a higher delivery count.
local function holds(id, entry, worker, attempt)
  local pending = redis.call('XPENDING', stream_of(id), WORKERS, entry, entry, 1)[1]
  return pending and pending[2] == worker and pending[4] == attempt
end

-- Milliseconds by the server's clock, the only one that all parties share.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
