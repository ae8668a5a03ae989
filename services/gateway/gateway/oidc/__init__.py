"""Sign-in by an OpenID provider: the authorization code flow with PKCE, and what a user may do. No state."""
