"""Sign-in by an OpenID provider: the authorization code flow with PKCE, and the roles of users. No state."""
