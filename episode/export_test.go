package episode

// VerifyBody is the body of call 6.
var VerifyBody = verifyBody

// ReadVerdict reads the reply of call 6.
var ReadVerdict = readVerdict
