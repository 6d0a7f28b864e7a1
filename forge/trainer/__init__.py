"""The small trainer: samples from Parquet, advantages over sessions, a clipped step on Ray, new weights."""
