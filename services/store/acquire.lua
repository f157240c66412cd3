-- Takes a lease if nobody holds it. ARGV: holder, time to live in ms. Returns {epoch}, or {0, the living holder, its ms
-- left}.
local held = redis.call('HMGET', lease, 'holder', 'expires')
local time = now()
if held[1] and held[1] ~= ARGV[1] and tonumber(held[2]) > time then
  return {0, held[1], tonumber(held[2]) - time}
end
redis.call('HSET', lease, 'holder', ARGV[1], 'expires', string.format('%.0f', time + ARGV[2]))
return {redis.call('HINCRBY', lease, 'epoch', 1)}
