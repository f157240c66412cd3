-- Replaces the list of environment servers. ARGV: epoch, holder, their URLs as JSON.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
redis.call('HSET', counters, 'servers', ARGV[3])
return 1
