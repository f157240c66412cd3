-- Renews a lease. ARGV: epoch, holder, time to live in ms. A time of 0 gives the lease up.
local gives_up = ARGV[3] == '0'
-- Asked again after a lost reply: it was given up before, and somebody else may hold it by now.
if gives_up and tonumber(redis.call('HGET', lease, 'released') or 0) >= tonumber(ARGV[1]) then return 1 end
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
if gives_up then
  redis.call('HDEL', lease, 'holder', 'expires')
  redis.call('HSET', lease, 'released', ARGV[1])
else
  redis.call('HSET', lease, 'expires', string.format('%.0f', now() + ARGV[3]))
end
return 1
