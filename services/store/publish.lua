-- Publishes a version of the weights. ARGV: epoch, holder, version and path as JSON.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
redis.call('HSET', counters, 'version', ARGV[3])
return 1
