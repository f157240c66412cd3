-- ARGV: name, snapshot as JSON, time to live in ms; without any it only reads.
-- Returns name, snapshot, ... of the living.
local time, living = now(), {}
if ARGV[1] then redis.call('HSET', beats, ARGV[1], string.format('%.0f ', time + ARGV[3]) .. ARGV[2]) end
local all = redis.call('HGETALL', beats)
for i = 1, #all, 2 do
  local expires, snapshot = string.match(all[i + 1], '^(%d+) (.*)$')
  if tonumber(expires) > time then
    living[#living + 1] = all[i]
    living[#living + 1] = snapshot
  else
    redis.call('HDEL', beats, all[i])
  end
end
return living
