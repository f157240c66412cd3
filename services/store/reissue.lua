-- A new life of the run: every unplayed ticket gets a new entry, in the old order, so that its attempts count from one
-- and nobody of the former life holds it. Attempts to train a step count from one as well.
-- Finished turns stay: the worker that plays the ticket next continues after them.
-- ARGV: epoch, holder. Returns the number of tickets.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
redis.call('DEL', attempts)
local reissued = 0
for _, stream in ipairs({tickets, evals}) do
  for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+')) do
    local ticket = cmsgpack.unpack(entry[2][2])
    local id, fresh = ticket.group .. '#' .. ticket.k, redis.call('XADD', stream, '*', 'ticket', entry[2][2])
    redis.call('HSET', outstanding, id, fresh)
    redis.call('XACK', stream, WORKERS, entry[1])
    redis.call('XDEL', stream, entry[1])
    reissued = reissued + 1
  end
end
return reissued
