"""Half messages: commit, rollback, check-back."""
