"""ScienceWorld: the published simulator, one small JVM for each live session."""
