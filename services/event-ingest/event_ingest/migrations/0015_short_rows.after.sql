-- No service of the previous version runs any more: from now on events may be stored in the short form. A service looks
-- for this function (`event_ingest.schema`); one that does not know this migration refuses to start.
create function stores_short_rows() returns boolean
language sql immutable parallel safe
return true;
