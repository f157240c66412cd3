-- Keeps the heartbeat of a process. ARGV: name, snapshot as JSON, time to live in ms. The answer is empty: with all
-- heartbeats in it, the bytes that Redis sends would grow with the square of the number of processes.
redis.call('HSET', beats, ARGV[1], string.format('%.0f ', now() + ARGV[3]) .. ARGV[2])
