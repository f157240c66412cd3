-- A new life of the run: every unplayed ticket gets a new entry, in the old order, so that its attempts count from one
-- and nobody of the former life holds it. ARGV: epoch, holder. Returns how many.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
local unplayed = redis.call('XRANGE', tickets, '-', '+')
for _, entry in ipairs(unplayed) do
  local ticket = cmsgpack.unpack(entry[2][2])
  local fresh = redis.call('XADD', tickets, '*', 'ticket', entry[2][2])
  redis.call('HSET', outstanding, ticket.group .. '#' .. ticket.k, fresh)
  withdraw(entry[1])
end
return #unplayed
