"""Our ``Sample`` for the trainers people already have: one file each. They only reshape; what is trained is decided
in ``forge.storage.samples``, once for all of them."""
