-- Issues the tickets of one whole group. ARGV: epoch, holder, capacity, kind, group, number (train), packed tickets k =
-- 0, 1, ...
-- 1: issued, now or before; 0: no capacity.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
local capacity, kind, group, number = tonumber(ARGV[3]), ARGV[4], ARGV[5], tonumber(ARGV[6])

if kind == 'train' then
  -- Numbers are issued without gaps, so one counter remembers every group ever issued.
  local next = tonumber(redis.call('HGET', counters, 'next_group'))
  if next and number < next then return 1 end
  if next and number > next then
    return redis.error_reply('GAP ' .. group .. ' is issued out of order: the next is ' .. next)
  end
  if count('issued') - count('dropped') >= capacity then return 0 end
  redis.call('HINCRBY', counters, 'issued', 1)
  redis.call('HSET', counters, 'next_group', number + 1)
elseif redis.call('ZSCORE', groups, group) or redis.call('ZSCORE', ready, group) then
  return 1
end

local stream = stream_of(group)
if redis.call('EXISTS', stream) == 0 then
  redis.call('XGROUP', 'CREATE', stream, WORKERS, '0', 'MKSTREAM')
end
redis.call('ZADD', groups, redis.call('HINCRBY', counters, 'order', 1), group)
for i = 7, #ARGV do
  local entry = redis.call('XADD', stream, '*', 'ticket', ARGV[i])
  redis.call('HSET', outstanding, group .. '#' .. (i - 7), entry)
end
return 1
