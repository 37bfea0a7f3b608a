"""What the end-to-end and security tests share: the server under test, raw HTTP, programs that run inside sandboxes."""
