-- Takes the newest manifest back and drops its groups for good. ARGV: epoch, holder, step, the number of its groups,
-- how many of them are dropped, then as JSON the drops that the manifest had taken and one drop for each of its groups.
-- The manifest itself is not read, because it may be damaged.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
local step = tonumber(ARGV[3])
local written = redis.call('HGET', manifests, step)
if not written and count('last_step') == step - 1 and redis.call('LPOS', drops, ARGV[#ARGV]) then return 1 end
if not written or step ~= count('last_step') or step <= count('retired_step') then
  return redis.error_reply('GAP step ' .. step .. ' cannot be skipped: the newest manifest is that of step '
    .. count('last_step') .. ', and episodes are retired up to step ' .. count('retired_step'))
end
local number = tonumber(ARGV[4])
for i = #ARGV - tonumber(ARGV[5]) + 1, #ARGV do forget(cjson.decode(ARGV[i]).group) end
for i = #ARGV, 6, -1 do redis.call('LPUSH', drops, ARGV[i]) end
redis.call('HDEL', manifests, step)
redis.call('HDEL', attempts, step, step .. ':cause')
redis.call('HSET', counters, 'last_step', step - 1)
redis.call('HINCRBY', counters, 'trained', 0 - number)
redis.call('HINCRBY', counters, 'dropped', number)
return 1
