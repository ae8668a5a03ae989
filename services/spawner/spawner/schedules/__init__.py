"""Schedules: tasks that are started at due times, each due time at most once."""
