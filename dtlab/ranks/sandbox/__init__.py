"""The sandbox: untrusted code in processes that see, take and reach only what they may."""
