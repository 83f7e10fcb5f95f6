"""Is this place ready for a build?"""
