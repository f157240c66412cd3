-- Gives a claimed ticket back. ARGV: ticket id, entry, worker, attempt, task and reason, ms until anyone may
-- claim it again.
-- 1: the ticket's attempts are used up; 0: it rests, and is then for anyone to claim, or it was no longer ours.
local id, entry, worker, attempt, cause = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local pause = tonumber(ARGV[6])
if redis.call('HGET', outstanding, id) ~= entry then return 0 end
if redis.call('HEXISTS', failed, id) == 1 then return 1 end
if not holds(id, entry, worker, attempt) then return 0 end
if attempt < MAX_ATTEMPTS then
  redis.call('DEL', turns_of(id)) -- they led to this failure: the next attempt starts over
  redis.call('XCLAIM', stream_of(id), WORKERS, worker, 0, entry, 'IDLE', RETURNED - pause, 'JUSTID')
  return 0
end
redis.call('HSET', failed, id, cause)
withdraw(id, entry)
return 1
