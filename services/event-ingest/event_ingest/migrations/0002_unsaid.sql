-- Whether a sandbox ended with something that its agent had said and that could not be published: the spawner's word.
alter table sandboxes add column unsaid boolean;
