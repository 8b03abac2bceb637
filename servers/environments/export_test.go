package environments

// GetWeatherParameters is the schema of the weather tool.
var GetWeatherParameters = getWeatherParameters
