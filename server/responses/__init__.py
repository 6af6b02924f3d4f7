"""The Responses API on top of chats: input items, runs that outlive connections, and the store."""
