-- Keeps the heartbeat of a process. ARGV: name, snapshot as JSON, time to live in ms. Without arguments it only reads.
-- Returns the name and the snapshot of each process that is alive.
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
