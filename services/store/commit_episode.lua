-- Commits an episode. The first writer wins, and the last member makes the group ready. ARGV: ticket id, entry, group,
-- size, blob.
-- 1: accepted; 0: refused. Not fenced by a lease: being outstanding is the ticket's own fence.
local id, entry, group, size, blob = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
if redis.call('HGET', outstanding, id) ~= entry then
  -- The same bytes are the same writer, asking again because the first reply was lost.
  return redis.call('HGET', episodes, id) == blob and 1 or 0
end
redis.call('HSET', episodes, id, blob) -- first: a Redis that is full refuses a script at its first write only
redis.call('HDEL', outstanding, id)
redis.call('HDEL', failed, id)
withdraw(id, entry)
redis.call('HINCRBY', counters, 'bytes', #blob)
for k = 0, size - 1 do
  if redis.call('HEXISTS', outstanding, group .. '#' .. k) == 1 then return 1 end
end
redis.call('ZADD', ready, redis.call('ZSCORE', groups, group), group)
redis.call('ZREM', groups, group)
return 1
