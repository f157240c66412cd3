"""OpenEnv both ways: its servers as environments of ours (client.py), our environments for its clients (server.py).

A session of OpenEnv is one WebSocket at `/ws`. Each message and each answer is JSON, `{"type": ..., "data": {...}}`:

    reset   {"seed": 7, ...}       observation   {"observation": {...}, "reward": 0.0, "done": false}
    step    the action's fields    observation
    state                          state         {"episode_id": ..., "step_count": 2}
    close                          error         {"message": ..., "code": ...}
"""
