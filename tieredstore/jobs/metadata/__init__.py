"""Makes the metadata of one broker's part of a tier anew, from the tier alone.

Tasks read the ends of segments (`queues`) and the index (`index`); what they found becomes topic
ids (`topic_ids`), tables and a file in one step (`state_files`).
"""
