/** A stand-in: the path of a file. */
package android.net

class Uri(val path: String)
