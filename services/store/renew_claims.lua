-- ARGV: worker, then entry and attempt of each claim. Returns the positions, from 0, of those that are no longer ours.
local gone = {}
local known = redis.call('EXISTS', tickets) == 1
for i = 2, #ARGV, 2 do
  if known and holds(ARGV[i], ARGV[1], tonumber(ARGV[i + 1])) then
    redis.call('XCLAIM', tickets, WORKERS, ARGV[1], 0, ARGV[i], 'JUSTID')
  else
    gone[#gone + 1] = i / 2 - 1
  end
end
return gone
