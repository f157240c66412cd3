-- Marks a step as evaluated. ARGV: epoch, holder, step.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
redis.call('HSET', counters, 'evaluated', ARGV[3])
return 1
