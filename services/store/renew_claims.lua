-- Renews claims. ARGV: worker, then ticket id, entry and attempt of each claim. Returns the positions, from 0, of the
-- claims that are no longer the worker's.
local gone = {}
for i = 2, #ARGV, 3 do
  local id, entry, attempt = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  if redis.call('EXISTS', stream_of(id)) == 1 and holds(id, entry, ARGV[1], attempt) then
    redis.call('XCLAIM', stream_of(id), WORKERS, ARGV[1], 0, entry, 'JUSTID')
  else
    gone[#gone + 1] = (i - 2) / 3
  end
end
return gone
