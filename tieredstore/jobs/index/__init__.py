"""Jobs on index files: rebuild lost files, and merge small files. Both have the same stages. Tasks
gather *rows*, one per key of a message, and stage them by store time. Other tasks build one index
file each. The driver puts the files into the tier and removes the replaced ones."""
