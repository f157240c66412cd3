-- Renews a lease. ARGV: epoch, holder, time to live in ms. A time of 0 gives the lease up.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
if ARGV[3] == '0' then
  redis.call('HDEL', lease, 'holder', 'expires')
else
  redis.call('HSET', lease, 'expires', string.format('%.0f', now() + ARGV[3]))
end
return 1
