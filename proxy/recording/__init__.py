"""From calls to frames, and, in another process, from frames to the dataset."""
