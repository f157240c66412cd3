-- Records how an attempt ended. ARGV: epoch, holder, step, and its error. Without an error the step is trained.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
if ARGV[4] then
  redis.call('HSET', attempts, ARGV[3] .. ':cause', ARGV[4])
else
  redis.call('HDEL', attempts, ARGV[3], ARGV[3] .. ':cause')
end
return 1
