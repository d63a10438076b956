"""The build on a Ray cluster: ranges of the inputs become segments, segments become shards; the bytes are the same.

What a document's ids are (assemble.py) and where files are cut (plan.py) is the local engine's, function for
function; here is only where the work happens and how it survives.
"""
