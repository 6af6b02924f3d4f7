"""The Messages API on top of chats: requests, and errors in its own form."""
