-- Writes the record of a learner step ahead of it. ARGV: epoch, holder, step, the manifest's JSON up to `"drops":[`,
-- groups.
-- Returns the manifest that holds for this step: an earlier incarnation's, if there is one.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
local step = tonumber(ARGV[3])
local written = redis.call('HGET', manifests, step)
if written then return written end
if step ~= count('last_step') + 1 then
  return redis.error_reply('GAP step ' .. step .. ' does not follow step ' .. count('last_step'))
end
for i = 5, #ARGV do
  if not redis.call('ZSCORE', ready, ARGV[i]) then
    return redis.error_reply('NOTREADY ' .. ARGV[i])
  end
end
for i = 5, #ARGV do
  redis.call('ZREM', ready, ARGV[i])
end
local manifest = ARGV[4] .. table.concat(redis.call('LRANGE', drops, 0, -1), ',') .. ']}'
redis.call('DEL', drops)
redis.call('HINCRBY', counters, 'trained', #ARGV - 4)
redis.call('HSET', counters, 'last_step', step)
redis.call('HSET', manifests, step, manifest)
return manifest
