-- Counts that an incarnation is about to train the manifest of a step. ARGV: epoch, holder, step, incarnation.
-- Returns {attempts of earlier incarnations, the last error of one, or ''}.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
local step, incarnation = ARGV[3], ARGV[4]
local life, made = string.match(redis.call('HGET', attempts, step) or '- 0', '^(%S+) (%d+)$')
if life ~= incarnation then
  made = made + 1
  redis.call('HSET', attempts, step, incarnation .. ' ' .. made)
end
return {made - 1, redis.call('HGET', attempts, step .. ':cause') or ''}
