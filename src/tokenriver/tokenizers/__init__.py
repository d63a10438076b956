"""Text to ids and back: a name or path becomes a tokenizer whose ids equal the reference library's."""
