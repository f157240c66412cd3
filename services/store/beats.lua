-- Reads heartbeats. ARGV: the name of a process, or nothing for all processes.
-- Returns the name and the snapshot of each that is alive. Deletes the heartbeats that have expired.
local time, living = now(), {}

local function look(name, beat)
  local expires, snapshot = string.match(beat, '^(%d+) (.*)$')
  if tonumber(expires) > time then
    living[#living + 1] = name
    living[#living + 1] = snapshot
  else
    redis.call('HDEL', beats, name)
  end
end

if ARGV[1] then
  local beat = redis.call('HGET', beats, ARGV[1])
  if beat then look(ARGV[1], beat) end
else
  local all = redis.call('HGETALL', beats)
  for i = 1, #all, 2 do look(all[i], all[i + 1]) end
end
return living
