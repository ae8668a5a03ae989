"""The archive of the history: Parquet files of a day, written before the day is dropped, and read to restore it."""
