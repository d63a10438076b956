"""What work on a Ray cluster needs, whatever the work is: a connection, tasks that survive, a folder that is shared.

Ray schedules, retries and notices dead nodes; nothing here does. Ray is imported when a session begins, and only then.
"""
