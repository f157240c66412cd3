-- Publishes a version of the weights. ARGV: epoch, holder, version and path as JSON, version and canary as JSON.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
redis.call('HSET', counters, 'version', ARGV[3], 'canary', ARGV[4])
return 1
