-- Returns the number of a new incarnation. ARGV: epoch, holder, the highest incarnation that the caller knows of.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
local incarnation = math.max(count('incarnation'), tonumber(ARGV[3])) + 1
redis.call('HSET', counters, 'incarnation', incarnation)
return incarnation
