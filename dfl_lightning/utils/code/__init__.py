"""Code of users and constructors: recorded, hashed, located; imports put off."""
