-- Drops a group for good, with its reason. ARGV: epoch, holder, group, kind, the drop as JSON.
-- 1: dropped; 0: refused, because it is unknown or in a manifest.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
local group, kind, record = ARGV[3], ARGV[4], ARGV[5]
if redis.call('ZREM', groups, group) + redis.call('ZREM', ready, group) == 0 then
  return redis.call('LPOS', drops, record) and 1 or 0
end
forget(group)
redis.call('RPUSH', drops, record)
if kind == 'train' then redis.call('HINCRBY', counters, 'dropped', 1) end
return 1
