-- Replaces the instructions that new training tickets carry. ARGV: the text.
redis.call('HSET', counters, 'correction', ARGV[1])
return 1
